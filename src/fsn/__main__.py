"""``python -m fsn`` is the command line; ``torchrun -m fsn train ...`` too."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    main()
