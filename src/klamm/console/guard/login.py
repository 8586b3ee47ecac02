"""The page that asks for the password. Plain HTML: nothing of the application is shown before the login."""

from __future__ import annotations

from html import escape

LOGIN_PATH = "/login"
LOGOUT_PATH = "/logout"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · Klamm</title>
<link rel="icon" href="/assets/icon.svg">
<script src="/assets/theme.js"></script>
<link rel="stylesheet" href="/assets/console.css">
</head>
<body class="k-login">
<form method="post">
<h1><img src="/assets/icon.svg" alt="" width="28" height="28"> Klamm</h1>
{complaint}
<label for="password">Password of this console</label>
<input id="password" name="password" type="password" autocomplete="current-password" autofocus required>
<button class="k-button k-primary" type="submit">Log in</button>
</form>
</body>
</html>
"""


def login_page(complaint: str) -> str:
    line = f'<p class="k-complaint" role="alert">{escape(complaint)}</p>' if complaint else ""
    return _PAGE.format(complaint=line)
