package provider

// Place finds the group of an instance, and says whether the group could do
// with one less. It is false for what is none of the file's groups', or gone.
func (s *Server) Place(instance string) (group string, aboveMin, ok bool) {
	now := s.current.Load()
	if now == nil {
		return "", false, false
	}
	group, ok = now.owner[instance]
	if !ok {
		return "", false, false
	}
	g := now.groups[group]
	return group, g.state.Target > max(g.minSize(), g.state.Min), true
}
