# SPDX-License-Identifier: Apache-2.0
"""FlexInfer's controller framework."""
