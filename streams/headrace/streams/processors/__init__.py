"""The pipeline's processors: pure logic, one module each."""
