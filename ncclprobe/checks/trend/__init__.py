"""What a store of reports (``--fleet``) knows of a node: is it as it was, and as its siblings are?"""

SOURCE = "history"
