package supervisor

// Restored loads the definitions that were put into the registry without Register, because a backup
// was restored.
func (s *Supervisor) Restored() error {
	s.reload.Lock()
	defer s.reload.Unlock()

	if !s.isLoaded() {
		return s.load()
	}

	s.registered = nil
	if err := s.loadRegistered(); err != nil {
		return err
	}

	return s.read()
}
