"""What several tests share: fakes of Protocols, and real things started for a test."""
