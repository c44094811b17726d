"""Attention in skewed chunks (Longformer, LED) as attention of blocks of queries to windows of keys.

Chunks of queries meet overlapping chunks of keys; the scores are padded and reshaped so that rows shift by one, cut
into pieces and written into a band; the weights are skewed back and multiplied with windows of values (Beltagy et al.
2020, as transformers writes it). Which spelling of that a model has does not matter, see `proof`.
"""

from __future__ import annotations

from tilegraph.rewrites.attention.find import is_product
from tilegraph.rewrites.attention.respell.edit import Site
from tilegraph.rewrites.attention.respell.skew.emit import emit
from tilegraph.rewrites.attention.respell.skew.proof import read
from tilegraph.rewrites.attention.respell.skew.stand_in import Untraceable


def unskewed(site: Site) -> bool:
    changed = False
    for node in [n for n in site.graph if is_product(n) and site.wants(n)]:
        try:
            found = read(node)
        except Untraceable:
            continue
        emit(site, found)
        changed = True
    return changed
