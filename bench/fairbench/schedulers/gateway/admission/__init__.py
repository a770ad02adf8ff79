"""Admission control: requests that would miss their deadline are refused or demoted."""
