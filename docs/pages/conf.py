# SPDX-License-Identifier: Apache-2.0
"""Sphinx's configuration for scripts/pages.sh, which gives it the pages that stage.py has put together."""
# pylint: disable=invalid-name
project = "libpickle"
author = "libpickle maintainers"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "alabaster"
html_theme_options = {
    "description": "tensors between the ranks of a job",
    "page_width": "1240px",
    "body_max_width": "980px",
    "sidebar_width": "230px",
    "font_family": "sans-serif",
    "fixed_sidebar": True,
    "show_powered_by": False,
}
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_copyright = False
html_sidebars = {"**": ["about.html", "navigation.html", "searchbox.html"]}
# Fragments of code that no lexer knows are shown as they are.
suppress_warnings = ["misc.highlighting_failure"]
