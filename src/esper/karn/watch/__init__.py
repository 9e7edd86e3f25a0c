"""The live page: runs in a browser, from their folders alone, while they go on and after."""
