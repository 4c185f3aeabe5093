//! Live XML of real guests.
