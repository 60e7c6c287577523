"""Test the rails between nodes: node 0 plans and leads, both ends of each test meet over the authenticated mesh."""
