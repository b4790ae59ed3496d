"""What is wrong between the files of one run, and with what is known beside them: reader, machine, model, release."""
