"""Requests to one repository, with the credentials of the engine's client."""

import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from tfbuild.errors import RegistryRefused, TfbuildError, conceal, without_secrets
from tfbuild.oci import credentials, refusals, transport
from tfbuild.oci.credentials import Credentials
from tfbuild.oci.manifests import parse_object
from tfbuild.oci.references import Repository, is_secure
from tfbuild.oci.transport import MOST_REASON, HttpSession, body_of, reaching, trusted
from tfbuild.util.terminal import printable

CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
TOKEN = re.compile("[!-~]*")


class Connection:
    """Send requests to one repository, with the credentials of the engine's client.

    `ca`: a company's CA certificates in PEM.
    """

    def __init__(self, repository: Repository, *, ca: Path | None = None) -> None:
        self.repository = repository
        self._session = HttpSession()
        # Otherwise requests replaces the engine's credentials by those in ~/.netrc.
        self._session.auth = lambda request: request
        # Passed with each request: REQUESTS_CA_BUNDLE would override the session's own setting.
        self._verify: str | bool | None = trusted(ca)
        self._authorization = ""

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = {},
        data: bytes | None = None,
        accept: Container[int] = (),
    ) -> requests.Response:
        """Return the registry's answer if it is a success or its status is in `accept`. Raises RegistryRefused."""
        url = urljoin(self.repository.url, path)
        answer = self._send(method, url, headers, data)
        if answer.status_code == 401 and (challenge := answer.headers.get("WWW-Authenticate", "")):
            answer.close()
            self._authorization = self._authorize(challenge)
            answer = self._send(method, url, headers, data)
        if answer.status_code < 400 or answer.status_code in accept:
            if method != "GET" or answer.status_code >= 400:
                # A connection can be used again once its answer is read to the end.
                body_of(answer)
            return answer
        raise self._refusal(answer)

    def _send(self, method: str, url: str, headers: Mapping[str, str], data: bytes | None) -> requests.Response:
        own = urlsplit(url)[:2] == urlsplit(self.repository.url)[:2]  # scheme and host
        authorization = {"Authorization": self._authorization} if self._authorization and own else {}
        with reaching(self.repository.host):
            return self._session.request(
                method,
                url,
                headers={**headers, **authorization},
                data=data,
                timeout=transport.SECONDS,
                stream=True,
                verify=self._verify,
            )

    def _authorize(self, challenge: str) -> str:
        """Return the header that a challenge demands: the credentials themselves, or a token obtained with them.

        "" if the token server refuses them: the registry's own 401 is then reported. Raises RegistryRefused if the
        token server fails.
        """
        known = credentials.stored(self.repository.host)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return known.basic
        fields = dict(CHALLENGE.findall(rest))
        realm = fields.get("realm", "")
        if not is_secure(realm):
            raise RegistryRefused(
                f"the token server of {self.repository.host} is {printable(realm, MOST_REASON)!r}, which is not https",
                hint="no credentials were sent there; check the --registry address",
            )
        server = f"{urlsplit(realm).hostname}, the token server of {self.repository.host},"
        with reaching(server):
            answer = self._get_token(
                realm, {name: fields[name] for name in ("service", "scope") if name in fields}, known
            )
        if answer.status_code in (400, 401, 403, 404):
            answer.close()
            return ""
        if answer.status_code != 200:
            raise self._refusal(answer, server)
        token = parse_object(body_of(answer), "token")
        bearer = str(token.get("token") or token.get("access_token") or "")
        conceal(known.name, bearer)
        if not TOKEN.fullmatch(bearer):
            raise RegistryRefused(f"{server} sent a token that no request can have", hint="try again later")
        return f"Bearer {bearer}"

    def _get_token(self, realm: str, query: dict[str, str], known: Credentials) -> requests.Response:
        """Request a token as the engine does: an identity token is sent as OAuth2's refresh token.

        Source: distribution.github.io/distribution/spec/auth/token and .../oauth.
        """
        settings: dict[str, Any] = {"timeout": transport.SECONDS, "stream": True, "verify": self._verify}
        if known.identity:
            form = {"grant_type": "refresh_token", "client_id": "tfbuild", "refresh_token": known.identity}
            return self._session.post(realm, data={**form, **query}, **settings)
        headers = {"Authorization": known.basic} if known.basic else {}
        return self._session.get(realm, params=query, headers=headers, **settings)

    def _refusal(self, answer: requests.Response, server: str = "") -> RegistryRefused:
        status = without_secrets(str(answer.reason), foreign=True)
        summary = f"{server or self.repository} answers {answer.status_code} {status}"
        reason = _reason(answer)
        hint = refusals.hint(answer.status_code, reason, self.repository.host)
        return RegistryRefused(f"{summary}: {reason or 'no reason given'}", hint=hint)


def _reason(answer: requests.Response) -> str:
    """Return the registry's own explanation, made safe for a terminal; "" if it gives none."""
    try:
        errors = parse_object(body_of(answer), "error").get("errors")
        first = errors[0] if isinstance(errors, list) and errors else {}
        parts = [first.get("message"), first.get("detail")] if isinstance(first, dict) else []
        text = ": ".join(part for part in parts if isinstance(part, str) and part)
    except TfbuildError:
        text = ""
    return printable(without_secrets(text, foreign=True), MOST_REASON).strip()
