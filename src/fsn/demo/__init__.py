"""The demo: three small models, a few minutes, two CPU cores, and a page that shows what came of it.

- :mod:`~fsn.demo.plan`: which models, of what size, on which texts, trained side by side
- :mod:`~fsn.demo.findings`: measure them, and the finished models of full size
- :mod:`~fsn.demo.page`: write the page
- :mod:`~fsn.demo.command`: ``fsn demo``
"""
