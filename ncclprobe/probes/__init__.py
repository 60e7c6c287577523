"""What is measured: with torch (the modules here), with the verbs library (``verbs/``) or with libfabric's own program
(``ping_pong``); these two never load torch."""
