"""How nodes find each other, reach each other and hand over what they know."""
