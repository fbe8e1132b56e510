"""Opens the page of the installed package, for `make package`: are all it needs in the wheel and its extra `web`?"""

from __future__ import annotations

import sys
import urllib.request

import tokenmerge
from tokenmerge.web.server import ServeOptions, serving


def main() -> None:
    if not tokenmerge.__file__.startswith(sys.prefix):
        raise SystemExit(f"{tokenmerge.__file__} is not what was installed into {sys.prefix}.")
    with serving(ServeOptions()) as address, urllib.request.urlopen(address) as answer:
        page = answer.read().decode()
    if "tokenmerge" not in page:
        raise SystemExit(f"The page is not what it should be:\n{page[:500]}")
    print(f"The page of the wheel is served: {len(page):,} characters.")


if __name__ == "__main__":
    main()
