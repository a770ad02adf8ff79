// Faults of the page that is shown, a line each: what is too wide, cut off, empty, or overlaps.
(() => {
  const faults = [], root = document.documentElement, wide = window.innerWidth;
  const area = document.querySelector('article') || document.body;  // not a site's drawers
  const start = node => node.textContent.trim().replace(/\s+/g, ' ').slice(0, 40);
  const named = one => `${one.tagName.toLowerCase()}.${one.getAttribute('class') || ''} ${start(one)}`;
  // The element within which one is scrolled or clipped, if there is any.
  const frameOf = one => {
    for (let up = one.parentElement; up && up !== root; up = up.parentElement)
      if (/auto|scroll|hidden|clip/.test(getComputedStyle(up).overflowX)) return up;
  };
  document.querySelectorAll('details').forEach(one => { one.open = true; });

  if (root.scrollWidth > wide) faults.push(`the page is ${root.scrollWidth} px wide`);
  for (const one of area.querySelectorAll('*')) {
    const box = one.getBoundingClientRect();
    if (!box.width || !box.height || frameOf(one)) continue;
    if (box.left < -1 || box.right > wide + 1) faults.push(`sticks out: ${named(one)}`);
  }

  for (const text of document.querySelectorAll('main svg text')) {
    const box = text.getBoundingClientRect(), frame = text.ownerSVGElement.getBoundingClientRect();
    const inside = box.left >= frame.left - 1 && box.right <= frame.right + 1
      && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
    if (box.width && !inside) faults.push(`cut off: ${start(text)}`);
  }

  for (const part of document.querySelectorAll('.headlines span, .headlines strong'))
    if (!/[\w%]/.test(part.textContent)) faults.push(`empty card: ${start(part.parentElement)}`);

  const texts = [], walker = document.createTreeWalker(area, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const style = getComputedStyle(node.parentElement);
    if (!node.data.trim() || style.visibility === 'hidden' || style.opacity === '0') continue;
    if (node.parentElement.closest('title, style, script')) continue;
    const range = document.createRange(), frame = frameOf(node.parentElement);
    range.selectNodeContents(node);
    const end = frame ? frame.getBoundingClientRect().right : Infinity;
    for (const {left, right, top, bottom} of range.getClientRects())
      if (Math.min(right, end) - left > 1)
        texts.push({left, right: Math.min(right, end), top, bottom, node});
  }
  texts.sort((one, other) => one.top - other.top);
  texts.forEach((one, at) => {
    for (const other of texts.slice(at + 1)) {
      if (other.top > one.bottom - 4) break;
      const common = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      if (other.node !== one.node && common > 2)
        faults.push(`overlap: ${start(one.node)} | ${start(other.node)}`);
    }
  });
  return faults;
})()
