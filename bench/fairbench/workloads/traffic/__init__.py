"""Traffic: when programs arrive. ``source`` says what any kind of it provides, one file each."""
