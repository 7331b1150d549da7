"""Listeners, TLS settings, SASL and principals, without I/O.

`configs` is the table of the security configs. `listeners` parses listener addresses, and
`settings` parses the TLS and SASL settings of one listener. `sasl_server_authenticator`
authenticates clients; each mechanism has its own module. `sasl_client_authenticator` authenticates
this broker to other brokers.
"""
