"""What every operator is made of: problems, fields, operands, references, costs."""
