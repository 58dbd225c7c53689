"""An S3 server that can be read and written and that fails as a test wants it to. It checks signatures with botocore and
counts the requests."""
import base64
import contextlib
import functools
import hashlib
import itertools
import re
import time
import urllib.parse
import zlib
from xml.sax.saxutils import escape

import google_crc32c
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import http_serving

ID, SECRET = "AKIDTESSERA", "wJalr/Secret+Key=="
ENV = {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-test-1"}


class Server(http_serving.Server):
    """The bucket "b". `objects` is {key: bytes}. `trouble(handler, key, count)` may answer a request itself and then returns
    True. `loses(handler)` says whether the reply to a write gets lost after the write was carried out. `done` lists the
    writes that were carried out, as (operation, key)."""

    def __init__(self, objects, trouble=lambda *a: False, region="eu-test-1", page=1000, keys=None, wrap=None):
        self.objects, self.trouble, self.region, self.page = objects, trouble, region, page
        self.keys = keys or {ID: (SECRET, None)}
        self.counts, self.active, self.most = {}, 0, 0
        self.uploads, self.done, self.loses, self.knows_conditions = {}, [], lambda handler: False, True
        self.numbers = itertools.count()  # of uploads
        self.condition = "If-None-Match", "*"
        self.declared = set()  # the uploads whose parts have checksums
        self.summed = {}  # the objects that were written with a checksum, which S3 then states: {key: bytes}
        self.algorithm, self.checksum_type = "CRC32", "FULL_OBJECT"  # of the checksums that are stated; a type of None is not
        self.began, self.written = time.time(), {}  # what was there from the beginning was written an hour before
        self.modified = lambda key: self.written.get(key, self.began - 3600)
        super().__init__(Handler, wrap=wrap)

    def stated(self, data):
        """The headers about the checksum of an object with these bytes."""
        of = data if self.checksum_type == "FULL_OBJECT" else b"the checksums of parts"
        return {f"x-amz-checksum-{self.algorithm.lower()}": SUMS[self.algorithm](of), **({"x-amz-checksum-type": self.checksum_type} if self.checksum_type else {})}

    def env(self, **more):
        return {**ENV, "AWS_ENDPOINT_URL": self.url, **more}


@functools.lru_cache(32)
def crc32c(data):
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


@functools.lru_cache(32)
def crc32(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def table64():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x9A6C9329AC4BC9B5 if value & 1 else 0)
        yield value


TABLE64 = list(table64())


@functools.lru_cache(32)
def crc64nvme(data):
    crc = (1 << 64) - 1
    for byte in data:
        crc = crc >> 8 ^ TABLE64[crc & 255 ^ byte]
    return base64.b64encode((crc ^ (1 << 64) - 1).to_bytes(8, "big")).decode()


SUMS = {"CRC32": crc32, "CRC32C": crc32c, "CRC64NVME": crc64nvme}


@functools.lru_cache(32)
def etag(data):
    return '"' + hashlib.md5(data).hexdigest() + '"'


class Handler(http_serving.Handler):
    def error(self, status, code, more="", **headers):
        return self.answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{self.headers}</Message>{more}</Error>".encode(), **headers)

    def refusal(self):
        """Returns (status, code) if the signature is not accepted, otherwise None."""
        m = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]+)",
                         self.headers.get("Authorization", ""))
        if not m:
            return 403, "AccessDenied"
        key, _, region, names, signature = m.groups()
        if key not in self.server.keys:
            return 403, "InvalidAccessKeyId"
        secret, token = self.server.keys[key]
        if token != self.headers.get("x-amz-security-token"):
            return 403, "InvalidToken"
        if region != self.server.region:
            return 400, "AuthorizationHeaderMalformed"
        request = AWSRequest(self.command, f"http://{self.headers['Host']}{self.path}", headers={n: self.headers[n] for n in names.split(";")})
        request.context["timestamp"] = self.headers["x-amz-date"]
        auth = S3SigV4Auth(Credentials(key, secret), "s3", region)
        wanted = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        return None if wanted == signature and "host" in names.split(";") else (403, "SignatureDoesNotMatch")

    def is_damaged(self):
        return hashlib.sha256(self.body).hexdigest() != self.headers.get("x-amz-content-sha256")

    def do_GET(self):
        s = self.server
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        key = urllib.parse.unquote(path)[len("/b/"):] if path.startswith("/b/") else ""
        with s.lock:
            s.asked.append((self.command, key or "?" + query, dict(self.headers)))
            s.counts[key] = count = s.counts.get(key, 0) + 1
            s.active += 1
            s.most = max(s.most, s.active)
        try:
            self.serve(path, key, urllib.parse.parse_qs(query, keep_blank_values=True), count)
        finally:
            with s.lock:
                s.active -= 1

    do_PUT = do_POST = do_DELETE = do_GET

    OPERATIONS = {("GET", "uploads"): "ListMultipartUploads", ("GET", "uploadId"): "ListParts", ("POST", "uploads"): "CreateMultipartUpload",
                  ("PUT", "uploadId"): "UploadPart", ("POST", "uploadId"): "CompleteMultipartUpload", ("DELETE", "uploadId"): "AbortMultipartUpload",
                  ("PUT", None): "PutObject", ("DELETE", None): "DeleteObject"}

    def serve(self, path, key, query, count):
        s = self.server
        self.operation = self.OPERATIONS.get((self.command, next((n for n in ("uploads", "uploadId") if n in query), None)), self.command)
        if s.trouble(self, key, count):
            return None
        refused = self.refusal()
        if refused:
            return self.error(*refused, f"<Region>{s.region}</Region>" if refused[0] == 400 else "")
        if self.is_damaged():
            return self.error(400, "XAmzContentSHA256Mismatch")
        if self.operation not in ("GET", "HEAD"):
            with s.lock:
                status, code, body, headers = self.write(key, {k: v[0] for k, v in query.items()})
                s.done += [(self.operation, key)] if status < 300 else []
            if s.loses(self):
                self.close_connection = True
                return self.connection.shutdown(2)
            return self.error(status, code) if code else self.answer(status, body, **headers)
        if not key:
            return self.list(query) if path.rstrip("/") == "/b" else self.error(404, "NoSuchBucket")
        if key not in s.objects:
            return self.error(404, "NoSuchKey")
        states = self.headers.get("x-amz-checksum-mode") == "ENABLED" and "Range" not in self.headers and s.summed.get(key) is s.objects[key]
        return self.give(s.objects[key], ETag=etag(s.objects[key]), **(s.stated(s.objects[key]) if states else {}))

    def write(self, key, query):
        """Carries out a write, or one of the listings that belong to writes. Returns (status, error code or None, body,
        headers)."""
        s = self.server
        name, value = s.condition
        absent = self.headers.get(name) == value and s.knows_conditions
        sum_of_body = self.headers.get("x-amz-checksum-crc32")
        if sum_of_body not in (None, crc32(self.body)) or self.headers.get("x-goog-hash") not in (None, "crc32c=" + crc32c(self.body)):
            return 400, "BadDigest", b"", {}
        upload = s.uploads.get(query.get("uploadId"))
        if "uploadId" in query and (upload is None or upload[0] != key):
            return 404, "NoSuchUpload", b"", {}
        if absent and name != "If-None-Match" and self.operation == "CompleteMultipartUpload":
            return 400, "NotImplemented", b"", {}  # Google answers this too.
        if absent and key in s.objects:
            return 412, "PreconditionFailed", b"", {}
        if self.operation == "ListMultipartUploads":
            names = sorted(((k, i) for i, (k, _) in s.uploads.items() if k.startswith(query["prefix"])))
            names = [n for n in names if n > (query.get("key-marker", ""), query.get("upload-id-marker", ""))]
            found = "".join(f"<Upload><Key>{escape(urllib.parse.quote_plus(k, safe='/'))}</Key><UploadId>{i}</UploadId></Upload>" for k, i in names[:s.page])
            more = f"<NextKeyMarker>x</NextKeyMarker><NextUploadIdMarker>{names[:s.page][-1][1] if names else ''}</NextUploadIdMarker>"
            return 200, None, (f"<ListMultipartUploadsResult><EncodingType>url</EncodingType>{more}<IsTruncated>{str(len(names) > s.page).lower()}</IsTruncated>"
                               f"{found}</ListMultipartUploadsResult>").encode(), {}
        if self.operation == "ListParts":
            numbers = [n for n in sorted(upload[1]) if n > int(query.get("part-number-marker", 0))]
            summed = lambda n: f"<ChecksumCRC32>{crc32(upload[1][n])}</ChecksumCRC32>" if query["uploadId"] in s.declared else ""
            found = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{escape(etag(upload[1][n]))}</ETag>{summed(n)}<Size>{len(upload[1][n])}</Size></Part>"
                            for n in numbers[:s.page])
            more = f"<NextPartNumberMarker>{(numbers[:s.page] or [0])[-1]}</NextPartNumberMarker><IsTruncated>{str(len(numbers) > s.page).lower()}</IsTruncated>"
            return 200, None, f"<ListPartsResult>{more}{found}</ListPartsResult>".encode(), {}
        if self.operation == "CreateMultipartUpload":
            name = f"upload-{next(s.numbers)}"
            s.uploads[name] = (key, {})
            s.declared.update([name] if self.headers.get("x-amz-checksum-algorithm") == "CRC32" else [])
            return 200, None, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>".encode(), {}
        if self.operation == "UploadPart" and sum_of_body and query["uploadId"] not in s.declared:
            return 400, "InvalidRequest", b"", {}  # S3 expects checksums where the upload declared them, and only there
        if self.operation == "UploadPart":
            upload[1][int(query["partNumber"])] = self.body
            return 200, None, b"", {"ETag": etag(self.body)}
        if self.operation == "CompleteMultipartUpload":
            wanted = [(int(n), e) for n, e in re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag>", self.body.decode())]
            parts = [upload[1].get(n, b"") for n, _ in wanted]
            sums = re.findall(r"<ChecksumCRC32>(.*?)</ChecksumCRC32>", self.body.decode())
            if sums != [crc32(p) for p in parts] if query["uploadId"] in s.declared else sums:
                return 400, "InvalidPart", b"", {}
            if [n for n, _ in wanted] != list(range(1, len(upload[1]) + 1)) or [e for _, e in wanted] != [etag(p) for p in parts]:
                return 400, "InvalidPart", b"", {}
            if any(len(p) < 5 << 20 for p in parts[:-1]):
                return 400, "EntityTooSmall", b"", {}
            s.objects[key] = b"".join(parts)
            s.written[key] = time.time()
            s.summed.update({key: s.objects[key]} if query["uploadId"] in s.declared else {})
            del s.uploads[query["uploadId"]]
            return 200, None, b"<CompleteMultipartUploadResult/>", {}
        if self.operation == "AbortMultipartUpload":
            del s.uploads[query["uploadId"]]
            return 204, None, b"", {}
        if self.operation == "PutObject":
            s.objects[key] = self.body
            s.written[key] = time.time()
            s.summed.update({key: self.body} if sum_of_body else {})
            return 200, None, b"", {"ETag": etag(self.body)}
        s.objects.pop(key, None)
        s.summed.pop(key, None)
        return 204, None, b"", {}

    def list(self, query):
        s, prefix = self.server, query.get("prefix", [""])[0]
        objects = dict(s.objects)  # other requests change them meanwhile
        keys = sorted(k for k in objects if k.startswith(prefix))
        if "delimiter" in query:
            keys = [k for k in keys if "/" not in k[len(prefix):]]
        start = int(query.get("continuation-token", ["t/+0"])[0][3:])
        page = keys[start:start + s.page]
        more = start + s.page < len(keys)
        items = "".join(f"<Contents><Key>{escape(urllib.parse.quote_plus(k, safe='/'))}</Key><ETag>{escape(etag(objects[k]))}</ETag>"
                        f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(s.modified(k)))}</LastModified>"
                        f"{f'<ChecksumAlgorithm>{s.algorithm}</ChecksumAlgorithm>' if s.summed.get(k) is objects[k] else ''}"
                        f"<Size>{len(objects[k])}</Size><Owner><ID>x</ID></Owner></Contents>" for k in page)
        token = f"<NextContinuationToken>t/+{start + s.page}</NextContinuationToken>" if more else ""
        return self.answer(200, (f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{items}'
                                 f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>{token}</ListBucketResult>").encode())


@contextlib.contextmanager
def serving(objects, trouble=lambda *a: False, **more):
    with http_serving.running(Server(objects, trouble, **more)) as server:
        yield server
