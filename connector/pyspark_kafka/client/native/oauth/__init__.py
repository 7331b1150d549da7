"""The sources of OAUTHBEARER tokens. `cached` implements the common behavior of all sources.

`providers` finds the provider that an option names: a vendor's provider (`aws_msk_iam`, `azure` or
`google`) or a user's provider. `oidc`, `token_file` and `unsecured` are configured with Kafka's own
settings.
"""
