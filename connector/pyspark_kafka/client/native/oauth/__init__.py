"""The sources of OAUTHBEARER tokens. `cached` gives them a common behaviour.

`providers` finds the provider that an option names: a vendor's (`aws_msk_iam`, `azure`, `google`)
or another one. `oidc`, `token_file` and `unsecured` are configured with Kafka's own settings.
"""
