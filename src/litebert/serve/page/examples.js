// Example inputs, by the language of the model.

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
    translate: [
      "A man in a red jacket is riding a bicycle down the street.",
      "Two dogs are playing in the snow. A child is watching them from the window.",
    ],
    similar: [
      "The cat sleeps on the sofa.\nA kitten is lying on the couch.\nA man is playing a guitar.\nSomeone plays music on an instrument.\nThe price of oil fell sharply.\nOil became much cheaper this week.",
      "It is raining heavily.\nHeavy rain is falling.\nShe won the tennis match.\nShe lost the tennis match.\nThe train was late again.\nOnce more the train came too late.",
    ],
    search: [
      {
        texts:
          "Parcels are delivered within three working days.\nYou can return anything within thirty days of buying it.\nTo change your password, open the settings of your account.\nOur shop is open from nine to six, except on Sundays.\nGift cards are valid for two years.\nWe repair watches and clocks in our own workshop.\nInvoices are sent by e-mail at the end of the month.",
        query: "My clock is broken, can you fix it?",
      },
    ],
    teach: [
      {
        name: "Weather, food, music",
        classes: {
          weather:
            "will it rain tomorrow\nis it cold outside\nit snowed all night in the mountains\nthe sun is shining again\na storm is coming from the north\nhow warm will it be on sunday",
          food: "the soup needs more salt\nhow long do I boil an egg\nthis bread is fresh from the oven\nwhat can I cook with potatoes\nthe cheese goes well with wine\nadd two cups of flour and some butter",
          music:
            "play a song by the beatles\nshe sings in a choir\nturn up the volume\nthe band played until midnight\nI am learning the piano\nwho wrote this symphony",
        },
        tries: ["how do I bake a cake", "he plays the guitar", "my tax return is due in june"],
      },
      {
        name: "Messages of customers",
        classes: {
          delivery:
            "where is my order\nmy package has not arrived yet\nhow long does shipping take\nthe parcel was left at the wrong house\ncan I change the delivery address\nthe delivery is three days late\nwhen will my parcel be delivered\nthe courier lost my package",
          payment:
            "I was charged twice\nmy card was declined\nplease send me an invoice\nwhen will I get my money back\ncan I pay by bank transfer\nthe price on my bill is wrong\nthe refund has not been paid\nhow much does it cost to pay by card",
          account:
            "I forgot my password\nhow do I change my e-mail address\nplease delete my account\nI cannot log in any more\nsomeone else uses my account\nmy user name is not accepted\nreset my password please\nsign in does not work",
        },
        tries: [
          "the courier never came",
          "why did you take the money two times",
          "the weather in the mountains is lovely",
        ],
      },
    ],
    inside: ["The keeper of the lighthouse lit the [MASK] every night.", "Paris is the [MASK] of France."],
  },
  zh: {
    fill: ["这本书的[MASK]是一位老师。", "他在北京大学[MASK]了四年。", "他是一位著名的[MASK]。"],
    classify: ["包裹还没到，电话也没人接。", "汤很好喝，服务员也很热情。", "请问怎么修改密码？"],
    tag: ["李明周五从上海飞往广州，参观南方电力公司。", "一九二九年一月，王海船长到达哈尔滨时，松花江已经封冻。"],
    answer: [
      {
        question: "水磨坊是谁建造的？",
        context:
          "柳河村在河湾旁边。村里最老的房子是水磨坊，由陈大山在1742年建造，为整个山谷磨面，直到铁路修通。1968年起它成了博物馆，每周日开放。",
      },
    ],
    translate: ["一个穿红色外套的男人骑着自行车经过街道。", "两只狗在雪地里玩耍，一个孩子从窗户里看着它们。"],
    similar: [
      "猫在沙发上睡觉。\n一只小猫躺在沙发上。\n他在弹吉他。\n有人在演奏乐器。\n石油价格大幅下跌。\n这周石油便宜多了。",
    ],
    search: [
      {
        texts:
          "包裹在三个工作日内送达。\n购买后三十天内可以退货。\n修改密码请打开账户设置。\n本店九点到六点营业，周日休息。\n礼品卡两年内有效。\n我们自己的工坊修理钟表。\n发票月底通过电子邮件发送。",
        query: "手表坏了能修吗",
      },
    ],
    teach: [
      {
        name: "天气、美食、音乐",
        classes: {
          天气: "明天会下雨吗\n外面很冷\n山里下了一夜的雪\n太阳又出来了\n北方有暴风雨\n周日气温多少度",
          美食: "汤里要多放点盐\n鸡蛋要煮多久\n面包刚出炉\n土豆可以做什么菜\n这道菜很好吃\n加两勺面粉和黄油",
          音乐: "放一首老歌\n她在合唱团唱歌\n把音量调大\n乐队演出到半夜\n我在学钢琴\n这首交响曲是谁写的",
        },
        tries: ["今天气温很低", "怎么做蛋糕", "快递员一直没来"],
      },
    ],
    inside: ["这本书的[MASK]是一位老师。", "他在北京大学[MASK]了四年。"],
  },
};
