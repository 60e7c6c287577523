"""What is measured: with torch (the modules here), or with the verbs library (``verbs/``), which never loads torch."""
