"""What each ONNX operator is: its class, its iteration space, its special values, its expression."""
