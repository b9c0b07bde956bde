"""What a serving process tells of itself: metrics in Triton's words, readings of its devices, health, online parity."""
