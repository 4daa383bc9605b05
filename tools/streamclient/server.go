package main

import (
	"flag"

	"k8s.io/client-go/rest"
)

// server is where to go, whom to trust there and who is asking.
type server struct {
	address, token, authority string
}

func serverFlags(flags *flag.FlagSet) *server {
	s := &server{}
	flags.StringVar(&s.address, "url", "", "where")
	flags.StringVar(&s.token, "token-file", "", "a file with a bearer token")
	flags.StringVar(&s.authority, "ca", "", "a file with the certificates to trust")
	return s
}

func (s *server) config() *rest.Config {
	return &rest.Config{Host: s.address, BearerTokenFile: s.token, TLSClientConfig: rest.TLSClientConfig{CAFile: s.authority}}
}
