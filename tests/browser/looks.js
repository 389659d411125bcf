// What a page looks like to a person: contrast of texts, clipped parts, sideways scrolling.
(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const brush = canvas.getContext("2d", { willReadFrequently: true });

  // [red, green, blue] from 0 to 255, alpha from 0 to 1
  function color(text) {
    const plain = /^rgba?\(([\d.]+)[, ]+([\d.]+)[, ]+([\d.]+)(?:[,/ ]+([\d.]+)(%?))?\)$/.exec(text);
    if (plain) {
      const alpha = plain[4] === undefined ? 1 : plain[4] / (plain[5] ? 100 : 1);
      return [+plain[1], +plain[2], +plain[3], alpha];
    }
    brush.clearRect(0, 0, 1, 1); // another colour space: let the browser convert it
    brush.fillStyle = "rgba(0,0,0,0)";
    brush.fillStyle = text;
    brush.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }

  function over(top, below) {
    const alpha = top[3] + below[3] * (1 - top[3]);
    if (alpha === 0) return [0, 0, 0, 0];
    const mix = (n) => (top[n] * top[3] + below[n] * below[3] * (1 - top[3])) / alpha;
    return [mix(0), mix(1), mix(2), alpha];
  }

  function luminance(rgb) {
    const [r, g, b] = rgb.slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  function ratio(one, other) {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  }

  // The stops of a gradient: each of them may lie behind a text.
  function stops(image) {
    if (!image.includes("gradient")) return [];
    return (image.match(/(?:rgba?|color|hsla?|oklch|oklab|lab|lch)\([^()]*\)/g) || []).map(color);
  }

  function parent(element) {
    return element.assignedSlot || element.parentElement || element.getRootNode().host || null;
  }

  // The text's colour and what is behind it, as seen: layers and opacities up to the root.
  function seen(ink, element) {
    let pairs = [[ink, [0, 0, 0, 0]]];
    for (let at = element; at; at = parent(at)) {
      const style = getComputedStyle(at);
      const fill = color(style.backgroundColor);
      const images = stops(style.backgroundImage);
      const layers = images.length ? images.map((stop) => over(stop, fill)) : [fill];
      pairs = pairs.flatMap(([front, back]) =>
        layers.map((layer) => [over(front, layer), over(back, layer)]));
      const opacity = +style.opacity;
      if (opacity < 1) {
        for (const pair of pairs.flat()) pair[3] *= opacity;
      }
    }
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    const page = dark ? [18, 18, 18, 1] : [255, 255, 255, 1];
    return pairs.map((pair) => pair.map((layer) => over(layer, page)))
      .sort((a, b) => ratio(...a) - ratio(...b))[0];
  }

  function describe(element) {
    const classes = [...element.classList].slice(0, 3).map((name) => `.${name}`).join("");
    const text = (element.innerText || element.textContent || "").trim().replace(/\s+/g, " ");
    return `${element.tagName.toLowerCase()}${classes} "${text.slice(0, 60)}"`;
  }

  function visible(element, boxes) {
    return element.checkVisibility({ visibilityProperty: true }) &&
      [...boxes].some((box) => box.width > 1 && box.height > 1);
  }

  function opaque(element) {
    for (let at = element; at; at = parent(at)) {
      if (+getComputedStyle(at).opacity === 0) return false;
    }
    return true;
  }

  function hex(rgb) {
    return "#" + rgb.slice(0, 3).map((n) => Math.round(n).toString(16).padStart(2, "0")).join("");
  }

  // Texts for screen readers only are one pixel large or clipped away.
  function forScreenReaders(element) {
    for (let at = element; at; at = parent(at)) {
      const style = getComputedStyle(at);
      if (style.position === "absolute" || style.position === "fixed") {
        if (at.offsetWidth <= 1 || at.offsetHeight <= 1) return true;
        if (style.clipPath === "inset(50%)" || style.clipPath === "inset(100%)") return true;
        if (/^rect\((0px|1px)(, ?| )\1\2\1\2\1\)$/.test(style.clip)) return true;
      }
    }
    return false;
  }

  function measure(text, element, ink) {
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
    const [front, back] = seen(color(ink), element);
    return {
      ratio: ratio(front, back),
      needed: large ? 3 : 4.5,
      text: text.trim().replace(/\s+/g, " ").slice(0, 100),
      element: describe(element),
      color: hex(front),
      background: hex(back),
      disabled: Boolean(element.closest(":disabled, [aria-disabled=true]")),
    };
  }

  function* everything(root) {
    yield root;
    for (const child of root.children || []) yield* everything(child);
    if (root.shadowRoot) for (const child of root.shadowRoot.children) yield* everything(child);
  }

  function inkOf(element, style) {
    const vector = element instanceof SVGElement && !(element instanceof SVGForeignObjectElement);
    return vector ? style.fill : style.webkitTextFillColor || style.color;
  }

  const FIELDS = "input:not([type=checkbox], [type=radio], [type=range], [type=color]), textarea";

  function contrasts(root) {
    const found = [];
    const add = (text, element, ink, boxes) => {
      if (text.trim() && visible(element, boxes) && opaque(element) && !forScreenReaders(element)) {
        found.push(measure(text, element, ink));
      }
    };
    for (const element of everything(root)) {
      if (element.matches("script, style, option, noscript, template")) continue;
      const style = getComputedStyle(element);
      if (element.matches(FIELDS)) {
        const ink = element.value ? style : getComputedStyle(element, "::placeholder");
        add(element.value || element.placeholder || "", element, inkOf(element, ink),
          element.getClientRects());
        continue;
      }
      for (const node of element.childNodes) {
        if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        add(node.data, element, inkOf(element, style), range.getClientRects());
      }
      for (const place of ["::before", "::after"]) {
        const pseudo = getComputedStyle(element, place);
        const text = /^"(.*)"$/.exec(pseudo.content);
        if (text && pseudo.display !== "none") {
          add(text[1], element, pseudo.color, element.getClientRects());
        }
      }
    }
    return found;
  }

  function scrollsSideways(element) {
    const style = getComputedStyle(element);
    const page = element === document.scrollingElement;
    return element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0 &&
      (page ? style.overflowX !== "hidden" : ["auto", "scroll"].includes(style.overflowX));
  }

  function sideScrolls(root, options) {
    const found = new Set();
    for (let at = root; at; at = parent(at)) found.add(at);
    if (options.inside) for (const element of everything(root)) found.add(element);
    return [...found].filter(scrollsSideways).map((element) =>
      `${describe(element)}: ${element.scrollWidth} px in ${element.clientWidth} px`);
  }

  // Fields scroll their text; what screen readers alone get is clipped on purpose.
  function clipped(root, options) {
    const found = [];
    for (const element of everything(root)) {
      if (element.matches("input, textarea, select, svg, svg *") || !element.clientWidth) continue;
      if (!visible(element, element.getClientRects()) || forScreenReaders(element)) continue;
      const style = getComputedStyle(element);
      const hides = (value) => value === "hidden" || value === "clip";
      const wide = hides(style.overflowX) && element.scrollWidth > element.clientWidth + 1 &&
        (options.ellipsis || style.textOverflow !== "ellipsis");
      const high = hides(style.overflowY) && element.scrollHeight > element.clientHeight + 1;
      const sizes = (whole, room) => `${whole} px in ${room} px`;
      if (wide) {
        found.push(`${describe(element)}: width ${sizes(element.scrollWidth, element.clientWidth)}`);
      }
      if (high) {
        found.push(
          `${describe(element)}: height ${sizes(element.scrollHeight, element.clientHeight)}`);
      }
    }
    return found;
  }

  function focusName() {
    let element = document.activeElement;
    while (element && element.shadowRoot && element.shadowRoot.activeElement) {
      element = element.shadowRoot.activeElement;
    }
    if (!element || element === document.body) return "";
    const byId = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.innerText || "");
    const names = [
      byId(element.getAttribute("aria-labelledby") || "").join(" "),
      element.getAttribute("aria-label"),
      [...(element.labels || [])].map((label) => label.innerText).join(" "),
      element.matches("input, textarea") ? "" : element.innerText,
      element.title,
      element.placeholder,
      element.tagName.toLowerCase(),
    ];
    return names.map((name) => (name || "").trim()).find(Boolean);
  }

  return { contrasts, sideScrolls, clipped, focusName };
})()
