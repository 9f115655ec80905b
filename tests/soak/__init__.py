"""Random mixed load under faults, for as long as asked, with every byte verified."""
