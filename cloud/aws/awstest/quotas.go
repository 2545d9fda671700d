package awstest

import (
	"encoding/json"
	"net/http"
)

// defaultQuotas are AWS's own of EC2, by their codes, of a new account:
// https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
var defaultQuotas = map[string]float64{
	"L-1216C47A": 5, // Running On-Demand Standard instances
	"L-DB2E81BA": 0, // Running On-Demand G and VT instances
	"L-417A185B": 0, // Running On-Demand P instances
	"L-34B43A08": 5, // All Standard Spot Instance Requests
	"L-3819A6DF": 0, // All G and VT Spot Instance Requests
	"L-7212CCBC": 0, // All P4, P3 and P2 Spot Instance Requests
	"L-C4BD4855": 0, // All P5 Spot Instance Requests
}

// SetQuota applies a quota to the account, such as "ec2", "L-DB2E81BA".
func (s *Stub) SetQuota(service, code string, value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quotas[service+"/"+code] = value
}

// SetDefaultQuota changes what GetAWSDefaultServiceQuota answers.
func (s *Stub) SetDefaultQuota(service, code string, value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defaults[service+"/"+code] = value
}

// quota answers both actions. GetServiceQuota knows only quotas that have been
// applied ("If the applied quota value is not available for a quota, the quota is
// not retrieved": https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_GetServiceQuota.html),
// the other one only AWS's own.
func (s *Stub) quota(r request) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	service, code := r.str("ServiceCode"), r.str("QuotaCode")
	var values map[string]float64
	switch r.action {
	case "GetServiceQuota":
		values = s.quotas
	case "GetAWSDefaultServiceQuota":
		values = s.defaults
	default:
		return refuse(r.service, badParam("UnknownOperationException", "%s is not known", r.action))
	}
	value, ok := values[service+"/"+code]
	if !ok {
		return refuse(r.service, badParam("NoSuchResourceException", "The request failed because the specified service quota does not exist."))
	}
	body, err := json.Marshal(map[string]any{"Quota": map[string]any{
		"ServiceCode": service, "QuotaCode": code, "Value": value, "Unit": "None", "Adjustable": true, "GlobalQuota": false,
		"QuotaArn": "arn:aws:servicequotas:" + region + ":" + account + ":" + service + "/" + code,
	}})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return answer{status: http.StatusOK, contentType: contentJSON, body: body}
}
