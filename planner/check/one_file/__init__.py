"""What is wrong in one file, whoever else is there."""
