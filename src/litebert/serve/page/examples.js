// Texts to begin with, in the language of the model.

export const EXAMPLES = {
  en: {
    fill: [
      "Paris is the [MASK] of France.",
      "The train to [MASK] leaves at [MASK] o'clock.",
      "The old sailor told us a [MASK] about the sea.",
    ],
    classify: [
      "My parcel has not arrived and nobody answers the phone.",
      "The soup was lovely and the waiter remembered us.",
      "Could you tell me how to change my password?",
    ],
    tag: [
      "Maria Sanders flew from Lisbon to Oslo on Friday to visit the offices of Nordlicht Energy.",
      "The river Elbe was frozen when Captain Howard Lane reached Hamburg in January 1929.",
    ],
    answer: [
      {
        question: "Who built the mill?",
        context:
          "The village of Harrowby lies in a bend of the river. Its oldest house is the water mill, which Thomas Reed built in 1742 and which ground corn for the whole valley until the railway came. Since 1968 it has been a museum, open on Sundays.",
      },
      {
        question: "How much does a ticket to the museum cost?",
        context:
          "The museum in the old water mill is open on Sundays from ten to four. Visitors can watch the wheel turn, grind a handful of corn themselves and buy the flour in the shop downstairs.",
      },
    ],
    similar: [
      "Where is my parcel?\nMy package has not arrived yet.\nHow do I change my password?\nI cannot log in any more.\nThe soup was cold.\nOur dinner was served cold.",
      "The cat sleeps on the sofa.\nA kitten is dozing on the couch.\nThe bank raised its interest rates.\nBorrowing money has become more expensive.",
    ],
    search: [
      {
        texts:
          "Parcels are delivered within three working days.\nYou can return anything within thirty days of buying it.\nTo change your password, open the settings of your account.\nOur shop is open from nine to six, except on Sundays.\nGift cards are valid for two years.\nWe repair watches and clocks in our own workshop.\nInvoices are sent by e-mail at the end of the month.",
        query: "I forgot how to log in",
      },
    ],
    teach: {
      "Customer messages": {
        delivery: "where is my order\nmy package has not arrived yet\nhow long does shipping take\nthe parcel was left at the wrong house\ncan I change the delivery address",
        payment: "I was charged twice\nmy card was declined\nwhere do I find the invoice\nwhen will I get my money back\ncan I pay by bank transfer",
        account: "I forgot my password\nhow do I change my e-mail address\nplease delete my account\nI cannot log in any more\nsomeone else uses my account",
      },
      Moods: {
        cheerful: "what a wonderful morning\nwe laughed all the way home\nthe best party in years\nI could sing for joy",
        gloomy: "nothing ever goes right for me\nit rained all day and nobody called\nI miss the old house so much\nthe letter made her cry",
      },
    },
    teachTry: ["the courier never came", "why did you take the money two times", "the weather in the mountains is lovely"],
    inside: ["The keeper of the lighthouse lit the [MASK] every night.", "Paris is the [MASK] of France."],
  },
  zh: {
    fill: ["这本书的[MASK]是一位老师。", "他在北京大学[MASK]了四年。", "春天来了，公园里的[MASK]都开了。"],
    classify: ["包裹还没到，电话也没人接。", "汤很好喝，服务员也很热情。", "请问怎么修改密码？"],
    tag: ["李明周五从上海飞往广州，参观南方电力公司。", "一九二九年一月，王海船长到达哈尔滨时，松花江已经封冻。"],
    answer: [
      {
        question: "水磨坊是谁建造的？",
        context: "柳河村在河湾旁边。村里最老的房子是水磨坊，由陈大山在1742年建造，为整个山谷磨面，直到铁路修通。1968年起它成了博物馆，每周日开放。",
      },
    ],
    similar: [
      "我的包裹在哪里？\n快递还没有到。\n怎么修改密码？\n我登录不了了。\n汤是凉的。\n晚饭端上来已经凉了。",
    ],
    search: [
      {
        texts: "包裹在三个工作日内送达。\n购买后三十天内可以退货。\n修改密码请打开账户设置。\n本店九点到六点营业，周日休息。\n礼品卡两年内有效。\n我们自己的工坊修理钟表。\n发票月底通过电子邮件发送。",
        query: "我忘了怎么登录",
      },
    ],
    teach: {
      客户留言: {
        物流: "我的订单到哪里了\n包裹还没有到\n发货要多久\n快递送错了地方\n可以修改收货地址吗",
        付款: "我被扣了两次钱\n银行卡付不了款\n发票在哪里找\n什么时候退款\n可以银行转账吗",
        账户: "我忘记密码了\n怎么更换邮箱\n请删除我的账户\n我登录不了了\n有人在用我的账号",
      },
      心情: {
        高兴: "多么美好的早晨\n我们一路笑着回家\n这是最开心的一天\n真想唱一首歌",
        难过: "什么事都不顺\n下了一整天雨，没人打电话\n我很想念老房子\n看完信她哭了",
      },
    },
    teachTry: ["快递员一直没来", "为什么收了两次钱", "山里的天气真好"],
    inside: ["这本书的[MASK]是一位老师。", "他在北京大学[MASK]了四年。"],
  },
};
