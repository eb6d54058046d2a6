"""matplotlib's SVG documents as parts of a page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from sparsegen.report.colours import Colour

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}href"


def inline(document: str, name: str, alt: str, tips: dict[str, list[str]]) -> str:
    """matplotlib's SVG made part of a page: own ids, CSS colours, tips, words for screen readers."""
    root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", document, count=1))
    for metadata in root.findall(f"{SVG}metadata"):
        root.remove(metadata)
    for group in list(root.iter(f"{SVG}g")):
        texts = tips.get(group.get("id", ""), [])
        for mark, text in zip(_marks(group), texts, strict=True) if texts else ():
            ElementTree.SubElement(mark, f"{SVG}title").text = text
    has_links = False
    seen: set[str] = set()
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        own = element.attrib.pop("id", None)
        if own is not None and own not in seen:  # matplotlib defines equal markers again, under an equal id
            seen.add(own)
            element.set("id", f"{name}-{own}")
        reference = element.attrib.pop(XLINK, None)
        if reference is not None:
            is_link = element.tag == "a"
            has_links |= is_link
            element.set("href", reference if is_link else f"#{name}-{reference.removeprefix('#')}")
        for attribute, value in element.items():
            if "url(#" in value:
                element.set(attribute, value.replace("url(#", f"url(#{name}-"))
        element.attrib.pop("target", None)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    # A drawing with links is no single image to a screen reader: its links must stay reachable.
    root.set("role", "group" if has_links else "img")
    root.set("aria-label", alt)
    text = ElementTree.tostring(root, encoding="unicode")
    for colour in Colour:
        text = text.replace(colour.light, f"var({colour.variable})")
    return re.sub(r'font: ([^;"]*?) \'DejaVu Sans\'[^;"]*', r"font: \1 var(--font)", text)


def _marks(group: ElementTree.Element) -> list[ElementTree.Element]:
    """The points of a scatter: references to one marker, or a path each where that is shorter."""
    defined = {path for defs in group.iter(f"{SVG}defs") for path in defs.iter(f"{SVG}path")}
    return list(group.iter(f"{SVG}use")) or [p for p in group.iter(f"{SVG}path") if p not in defined]
