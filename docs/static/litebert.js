// The bar at the left shows where one is.
document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector(".sidebar-scroll");
  const here = bar?.querySelector(".sidebar-tree .current-page > a");
  if (here) bar.scrollTop += here.getBoundingClientRect().top - bar.getBoundingClientRect().top - bar.clientHeight / 2;
});
