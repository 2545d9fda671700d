package mtls

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

const (
	certificateBlock = "CERTIFICATE"
	privateKeyBlock  = "PRIVATE KEY"
)

// blocks decodes every PEM block. pem.Decode skips damaged blocks; here they are an
// error, since a truncated chain or CA bundle would otherwise pass as a shorter one.
func blocks(data []byte) ([]*pem.Block, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("is empty: it must contain PEM blocks")
	}
	begins := bytes.Count(data, []byte("-----BEGIN "))
	if begins == 0 {
		return nil, errors.New("is not PEM: convert it with openssl and -outform pem")
	}
	var found []*pem.Block
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			break
		}
		found = append(found, block)
	}
	if len(found) != begins {
		return nil, fmt.Errorf("is truncated or damaged: %d PEM blocks begin and %d are complete; copy it again", begins, len(found))
	}
	return found, nil
}

// parseCertificates returns the certificates of a file, at least one. It skips other
// blocks, since a certificate and its key may share a file.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	found, err := blocks(data)
	if err != nil {
		return nil, err
	}
	var certificates []*x509.Certificate
	for _, block := range found {
		if block.Type != certificateBlock {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("contains a certificate that cannot be parsed: %w; copy it again", err)
		}
		certificates = append(certificates, c)
	}
	if len(certificates) == 0 {
		return nil, fmt.Errorf("contains no certificate but %s: check that the files are not swapped", kinds(found))
	}
	return certificates, nil
}

// parseKey returns the first private key of a file.
func parseKey(data []byte) (crypto.Signer, error) {
	found, err := blocks(data)
	if err != nil {
		return nil, err
	}
	for _, block := range found {
		if !strings.HasSuffix(block.Type, privateKeyBlock) {
			continue
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
			return nil, errors.New("is encrypted and the server has no password for it: decrypt it with `openssl pkey`")
		}
		return parseKeyBytes(block.Bytes)
	}
	return nil, fmt.Errorf("contains no private key but %s: check that the files are not swapped", kinds(found))
}

// parseKeyBytes tries the three encodings in use.
func parseKeyBytes(der []byte) (crypto.Signer, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
			return key, nil
		}
		if key, err := x509.ParseECPrivateKey(der); err == nil {
			return key, nil
		}
		return nil, fmt.Errorf("contains a private key that cannot be parsed: %w; copy it again", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("contains a %T, which cannot sign: use an ECDSA, RSA or Ed25519 key", key)
	}
	return signer, nil
}

func kinds(found []*pem.Block) string {
	types := make([]string, len(found))
	for i, block := range found {
		types[i] = block.Type
	}
	return strings.Join(types, ", ")
}

func belongs(key crypto.Signer, certificate *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(certificate.PublicKey)
}
