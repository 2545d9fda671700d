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

// blocks decodes every PEM block. The standard decoder skips over what it cannot
// read; here a damaged block is an error, since a chain or a CA bundle that was
// cut short would otherwise pass as a shorter one.
func blocks(data []byte) ([]*pem.Block, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("is empty: write the PEM text into it")
	}
	begins := bytes.Count(data, []byte("-----BEGIN "))
	if begins == 0 {
		return nil, errors.New("is not PEM, the text form with -----BEGIN lines: convert it (openssl, -outform pem)")
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
		return nil, fmt.Errorf("is cut short or damaged: %d PEM blocks begin and %d can be read; copy it again", begins, len(found))
	}
	return found, nil
}

// parseCertificates returns the certificates of a file, at least one. Other
// blocks are passed over: a certificate and its key may share a file.
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
			return nil, fmt.Errorf("holds a certificate that cannot be parsed: %w; copy it again", err)
		}
		certificates = append(certificates, c)
	}
	if len(certificates) == 0 {
		return nil, fmt.Errorf("holds no certificate but %s: check that the files are not swapped", kinds(found))
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
			return nil, errors.New("is encrypted and nobody can type its password here: decrypt it with `openssl pkey`")
		}
		return parseKeyBytes(block.Bytes)
	}
	return nil, fmt.Errorf("holds no private key but %s: check that the files are not swapped", kinds(found))
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
		return nil, fmt.Errorf("holds a private key that cannot be parsed: %w; copy it again", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("holds a %T, which cannot sign: use an ECDSA, RSA or Ed25519 key", key)
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
