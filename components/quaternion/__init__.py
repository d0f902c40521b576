"""Networks of quaternion features: layers whose weights multiply by the Hamilton product, and attention on top of them."""
