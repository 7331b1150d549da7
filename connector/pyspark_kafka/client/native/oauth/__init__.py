"""The sources of OAUTHBEARER tokens. `cached` implements the behavior that they share.

`providers` finds the provider that an option names: a vendor's (`aws_msk_iam`, `azure`, `google`)
or a user's. `oidc`, `token_file` and `unsecured` are configured with Kafka's own settings.
"""
