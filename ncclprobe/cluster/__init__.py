"""How nodes find each other, reach each other and share what they know."""
