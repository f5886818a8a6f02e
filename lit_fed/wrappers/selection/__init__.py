"""Rules that select the clients of a round by losses that candidates report; classes here are found automatically."""
