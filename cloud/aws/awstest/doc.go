// Package awstest stands in for AWS in tests, over the real wire protocols, so
// that what is tested is the SDK's own clients and everything above them.
//
//   - Stub models Auto Scaling groups with all that a test has to provoke: victims
//     of scale-in, launches that fail or come late, stale and lost answers.
//   - Moto runs the moto server (https://docs.getmoto.org), which others wrote.
//     It keeps the Stub honest: the same calls have to decode to the same answers.
//   - Proxy stands before either, spoils answers and notes which actions pass.
//
// It knows nothing of the provider: it speaks AWS, and the test turns its knobs.
//
// What the Stub takes for AWS's behaviour is from these documents, each named by
// its short name where the code relies on it:
//
//   - API reference: https://docs.aws.amazon.com/autoscaling/ec2/APIReference/
//     and https://docs.aws.amazon.com/AWSEC2/latest/APIReference/
//   - Protection: "Use instance scale-in protection",
//     https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-instance-protection.html
//   - Termination policies: "Configure termination policies",
//     https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-termination-policies.html
//   - Lifecycle: "Amazon EC2 Auto Scaling instance lifecycle",
//     https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
//   - Processes: "Suspend and resume Amazon EC2 Auto Scaling processes",
//     https://docs.aws.amazon.com/autoscaling/ec2/userguide/as-suspend-resume-processes.html
//     and its "Considerations for suspending processes"
//   - Scaling limits: "Set scaling limits for your Auto Scaling group",
//     https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-capacity-limits.html
//   - Warm pools: "Decrease latency for applications with long boot times using warm pools",
//     https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-warm-pools.html
//   - Launch failures: "Troubleshoot Amazon EC2 Auto Scaling: EC2 instance launch failures",
//     https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-instancelaunchfailure.html
//
// Where no document says what AWS does, the Stub does the worst it could, and
// says "assumed" there: what holds against the Stub then holds on AWS.
package awstest
