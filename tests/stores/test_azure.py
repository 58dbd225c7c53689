"""Reads az:// from azurite. Azure's own client writes the blobs and signs the URLs."""
import datetime

import servers
from checks import Skip, need, test
from test_s3 import compare_samples, tensor_file

ACCOUNT, KEY = "devstoreaccount1", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@test
def test_azure_azurite(t):
    try:
        from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas
    except ImportError as e:
        raise Skip("azure-storage-blob is not installed (PyPI)") from e
    with servers.azurite() as url:
        endpoint = f"{url}/{ACCOUNT}"
        client = BlobServiceClient(endpoint, credential=KEY)
        container = client.create_container("container")
        later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        sas = generate_account_sas(ACCOUNT, KEY, ResourceTypes(service=True, container=True, object=True), AccountSasPermissions(read=True, list=True), later)
        secret = dict(p.split("=", 1) for p in sas.split("&"))["sig"].encode()
        env = {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_SERVICE_ENDPOINT": endpoint + "/", "AZURE_STORAGE_SAS_TOKEN": "?" + sas}
        put = lambda name, data: container.upload_blob(name, data, overwrite=True)
        compare_samples(t, put, f"az://{ACCOUNT}/container", env)
        connection = {"AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={endpoint};SharedAccessSignature={sas};AccountName={ACCOUNT}"}
        _, data = tensor_file(t)
        put("a b/100%41/ü+&=/x.safetensors", data)
        t.json("inspect", f"az://{ACCOUNT}/container/a b/100%41/ü+&=/", "--json", env=connection)
        for words, more in (("AccountKey", {"AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={endpoint};AccountName={ACCOUNT};AccountKey={KEY}"}),
                            ("AZURE_STORAGE_KEY", {"AZURE_STORAGE_KEY": KEY, "AZURE_STORAGE_SERVICE_ENDPOINT": endpoint}),
                            ("no credentials", {"AZURE_STORAGE_SERVICE_ENDPOINT": endpoint}), ("'other'", {**env, "AZURE_STORAGE_ACCOUNT": "other"}),
                            ("403", {**env, "AZURE_STORAGE_SAS_TOKEN": sas[:-6] + "AAAA%3D"})):
            p = t.run("inspect", f"az://{ACCOUNT}/container/x", status=2, env=more)
            need(words in p.stderr.decode() and KEY.encode() not in p.stderr and secret not in p.stderr, f"{words}: {p.stderr}")
        p = t.run("inspect", f"az://{ACCOUNT}/container/none", status=2, env=env)
        need(b"no such object" in p.stderr, p.stderr)
        p = t.run("inspect", f"az://{ACCOUNT}/none/x", status=2, env=env)
        need(b"ContainerNotFound" in p.stderr, p.stderr)
