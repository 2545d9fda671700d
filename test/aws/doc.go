// Package aws holds the provider on AWS to the public bug reports that bear on
// it: provider.Server over cloud/aws, asked by a real gRPC client, with a
// stand-in for AWS behind real HTTP. What the Backend owes by itself is tested in
// cloud/aws; here is what Cluster Autoscaler gets to see of it, and what AWS.
//
// Names are the reports' numbers in shared/cases.md. Where a report and the design
// differ, the design decides.
//
//	case        here                                              also
//	A-05        TestA05AnswersThatComeAfterTheDeadline            conformance
//	A-15        TestA15IdsByteForByte                             conformance (Nodes under another spelling)
//	A-17        TestA17AWSIsAwayWhileANodeBoots                   conformance
//	B-01        TestB01TheSeventhArrivesWhileItsPlaceholder…      cloud/aws: TestInstanceArrivesDuringCancel, TestRaces
//	B-02, B-03  TestB02B03HalfAnIncreaseFails                     cloud/aws: TestRaces, TestRacesFindMistakes
//	B-04        TestB04DecreaseByMoreThanIsMissing                cloud/aws: TestRacesFindMistakes
//	B-06        TestB06DecreaseOfANodeThatDrains                  conformance
//	B-07        TestB07TargetIsWhatIsListed                       cloudtest (each Group), property (simulated cloud)
//	B-08        TestB08NothingComes                               conformance
//	B-13        TestB13SomebodyElseLowersTheTarget                cloud/aws: TestSomebodyElse
//	B-15        TestB15Throttling, TestB15ReadingsDoNotGrow…      cloud/aws: TestDescribeFails, TestCallBudget
//	B-16        TestB16DeletedNodesStayDeleted                    cmd: TestKilledBetweenAnyTwoCalls (killed between steps)
//	B-17        TestB17CooldownAndActivitiesInProgress            cloud/aws: TestIncreaseAsksForAnAbsoluteValueDespiteCooldown
//	C-01        TestC01ProcessesAreSuspended                      cloud/aws: TestLaunchSuspended
//	C-05        TestC05StatesOfInstances                          cloud/aws: TestLifecycle (states to come, too), TestStandby
//	C-07        TestC07DetachedByHand
//	D-01, D-02  TestMotoLifecycleOfFiftyGroups                    conformance (from the file), cloud/aws: TestGPUs, TestNodeTags
//	D-03        TestMotoLifecycleOfFiftyGroups (by tags)          conformance (by the file)
//	D-05        TestMotoLifecycleOfFiftyGroups                    conformance
//	D-06        TestG01CapacityErrorsShowWithinOneRefresh         conformance
//	G-01, G-02  TestG01CapacityErrorsShowWithinOneRefresh         cloud/aws: TestLaunchFailure
//	G-03        audited, in every test                            conformance
//	G-05        TestG05CodesAndClasses                            cloud/aws: TestLaunchCode (all sentences)
//	G-06        TestG06G07G10ServiceQuota                         conformance (a limit of the file)
//	G-07        TestG06G07G10ServiceQuota, TestG07DefaultOfAWS    cloud/aws: TestQuota
//	G-08        TestG08ErrorsMeanThatNothingWasChanged            cloud/aws: TestOutcomeOfAnIncrease
//	G-10        TestG06G07G10ServiceQuota                         conformance
//
// Not shown: C-03, C-04, which the design puts off, and the Event of B-13: what
// somebody else does shows in sizes and states, and no Event tells of it.
//
// Besides the cases: what a refresh interval costs (TestCallsOfARefreshInterval),
// faults of every call of a write (TestFaultsOf…), readings that lag
// (TestAnswersFromBeforeAWrite), and the IAM policy: no test makes an action arrive
// that aws.Permissions does not name, and when all tests have run, each that it
// names has arrived (TestMain).
//
// It does not know Kubernetes: checkpoints, Events and cordons are tested with the
// packages that do them.
package aws
