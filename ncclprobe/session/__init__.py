"""What a measuring run needs besides measuring: who the ranks are, how they meet, who is lost, and the book of rows."""
