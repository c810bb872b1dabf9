"""The scheduler at work: a service that keeps live jobs at the sizes a policy gives them. Policies are elsewhere."""
