"""``fsn explore``: a page on this computer that shows two models at work on what one types.

:mod:`explorer` looks into the models, :mod:`server` answers the page's questions, ``page.*`` is the page itself.
"""
