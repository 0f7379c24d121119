// Returns [text, contrast ratio] of every visible text below WCAG's 4.5 (large text: 3).
() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].map((value) => value / 255);
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);
  const behind = (element) => {
    if (!element) return [1, 1, 1];
    const colour = rgba(getComputedStyle(element).backgroundColor);
    return colour[3] === 1 ? colour.slice(0, 3) : over(colour, behind(element.parentElement));
  };
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const opacity = (element) => (element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1);
  const low = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const [text, element] = [texts.currentNode.data.trim(), texts.currentNode.parentElement];
    if (!text || !element.checkVisibility({ visibilityProperty: true }) || element.closest("option, [aria-hidden=true], .visually-hidden, .skip")) continue;
    const style = getComputedStyle(element);
    const background = behind(element);
    const [r, g, b, a] = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [one, two] = [luminance(over([r, g, b, a * opacity(element)], background)), luminance(background)];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) low.push([text.slice(0, 60), Math.round(100 * ratio) / 100]);
  }
  return low;
}
