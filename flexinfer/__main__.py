# SPDX-License-Identifier: Apache-2.0
"""Run the command line as `python -m flexinfer`."""

from flexinfer.cmd import main

main()
